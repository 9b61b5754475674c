"""What the bridge and the evaluation both write. Private to users."""
