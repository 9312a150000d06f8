"""What tests share: tiny models, small data, and whole runs with them. Tests import nothing else from tests."""
