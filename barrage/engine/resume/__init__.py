"""What a subscriber missed: sources as they were, replayed through the same operators."""
