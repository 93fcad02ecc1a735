"""What every operation of a pass is handed: its seams, its settings, its running job."""
