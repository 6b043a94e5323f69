"""What pytest leaves alone here: a user's project is tested as one, from outside."""

collect_ignore = ["user_project"]
