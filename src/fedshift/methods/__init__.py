"""Published methods, one small file each; every module here is discovered and imported."""
