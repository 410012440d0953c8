"""What is trained on: sums, sets of the hub, files of the user; and how long a prompt may be."""
