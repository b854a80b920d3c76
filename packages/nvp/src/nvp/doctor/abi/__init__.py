"""What an extension of torch and the installed torch have to agree on."""
