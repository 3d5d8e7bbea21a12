"""What must hold whatever happened, judged from stored rows and events alone."""
