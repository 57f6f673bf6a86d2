"""The service: sessions, accounts, journal, sockets, dashboard. No torch."""
