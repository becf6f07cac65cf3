"""Users, groups, rights, logins, tokens, external issuers and directories."""
