"""What a run leaves on disk: its folder, metrics, rollouts and checkpoints. Imports no torch when it is loaded."""
