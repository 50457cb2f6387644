"""Published methods, one small file each; every module here is found by itself."""
