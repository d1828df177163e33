"""Look at stores in the browser: a local web page and the server behind it."""
