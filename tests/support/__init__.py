"""What tests share: real servers, independent readers, real tables of others."""
