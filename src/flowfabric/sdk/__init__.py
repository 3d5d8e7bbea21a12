"""The SDK: an app, its tasks, steps and workflows, and their runs. Import the names from ``flowfabric``."""
