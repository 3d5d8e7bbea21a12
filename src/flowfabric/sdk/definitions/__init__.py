"""From a decorated function to a task, step or workflow: parameters, dependencies, values on the wire."""
