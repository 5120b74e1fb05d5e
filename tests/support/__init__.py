"""What tests share: fakes and the demo model."""
