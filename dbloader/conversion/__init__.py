"""Write stores: from files, from samples and from other stores."""
