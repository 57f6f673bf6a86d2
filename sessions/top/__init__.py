"""The dashboard in a terminal. Needs the extra ``top`` and no server here."""
