"""The service: sessions, ledger, WebSocket server, dashboard, command line."""
