"""What plays a method: visits at the clients, rounds at the server, checks before and after."""
