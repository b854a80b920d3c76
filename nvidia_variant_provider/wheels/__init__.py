"""Names and metadata folders of wheels."""
