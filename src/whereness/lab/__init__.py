"""The lab: small models, trained side by side, that show which encoding suits a text."""
