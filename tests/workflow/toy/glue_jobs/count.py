"""A job that writes what it was asked, or fails, or sleeps."""

import sys
import time

import boto3

arguments = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
if arguments["--how"] == "fail":
    raise SystemExit("the job broke")
if arguments["--how"] == "sleep":
    time.sleep(60)
boto3.client("s3").put_object(Bucket=arguments["--bucket"], Key="from-the-job", Body=" ".join(sorted(arguments)))
