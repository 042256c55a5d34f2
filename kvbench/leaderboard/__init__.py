"""The leaderboard: one HTML page that needs neither a network nor a server."""
