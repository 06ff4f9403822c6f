"""Tables, figures and pages: what a person looks at."""
