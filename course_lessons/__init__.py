"""What a single lesson asks for: its checks, their pages, its harness, its own pictures."""
