"""Check result files before they enter the leaderboard, and verify them by running again."""
