"""The only room that knows every adapter: settings to services, inside one AsyncExitStack."""
