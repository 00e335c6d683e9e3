"""What grammar libraries cost per token, and what they survive."""
