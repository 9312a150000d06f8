"""What tests share: tiny models, small data, whole runs over them. Tests import nothing else from tests."""
