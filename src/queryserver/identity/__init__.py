"""Users, groups, rights, logins, tokens, external issuers, directories."""
