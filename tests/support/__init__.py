"""Code that tests share: real servers, independent readers, real tables of other engines."""
