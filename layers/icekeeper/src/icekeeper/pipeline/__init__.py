"""The use cases of the serverless pipeline: what each function and job does, without Lambda, Glue or Powertools."""
