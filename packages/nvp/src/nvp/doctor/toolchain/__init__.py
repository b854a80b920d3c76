"""The compilers and the assemblers that make GPU code on this machine."""
