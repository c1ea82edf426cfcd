"""What a user asks for: settings and the rules that check them."""
