"""Faults that other projects have reported in public: each one's kind must be impossible here."""
