"""A folder as the way between server and clients, for sites that exchange files and open no port."""
