"""The only room that knows every adapter: settings to services, inside one AsyncExitStack."""

from queryserver.container.services import open_services as open_services
