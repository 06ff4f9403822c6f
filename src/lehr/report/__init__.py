"""What people look at: figures, and the text that goes with them. Only this room imports matplotlib."""
