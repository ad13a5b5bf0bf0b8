"""S3 storage: signed requests, presigned URLs and AWS credentials."""
