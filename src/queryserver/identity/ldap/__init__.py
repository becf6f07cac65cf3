"""The login back end `ldap`."""
