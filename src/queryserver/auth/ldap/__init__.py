"""The login back end `ldap`: names and passwords are judged by a directory."""
