"""The actions of clients: each is a function of the arguments that were admitted."""
