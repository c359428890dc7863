"""Generated from deephaven.proto by proto_schemas/generate.sh; do not edit."""

import base64

FILE_DESCRIPTOR = base64.b64decode(
    "Cg9kZWVwaGF2ZW4ucHJvdG8SIWlvLmRlZXBoYXZlbi5wcm90by5iYWNrcGxhbmUuZ3JwYyIfCh1Db25maWd1cmF0"
    "aW9uQ29uc3RhbnRzUmVxdWVzdCKLAgoeQ29uZmlndXJhdGlvbkNvbnN0YW50c1Jlc3BvbnNlEngKDWNvbmZpZ192"
    "YWx1ZXMYASADKAsyUy5pby5kZWVwaGF2ZW4ucHJvdG8uYmFja3BsYW5lLmdycGMuQ29uZmlndXJhdGlvbkNvbnN0"
    "YW50c1Jlc3BvbnNlLkNvbmZpZ1ZhbHVlc0VudHJ5Ugxjb25maWdWYWx1ZXMabwoRQ29uZmlnVmFsdWVzRW50cnkS"
    "EAoDa2V5GAEgASgJUgNrZXkSRAoFdmFsdWUYAiABKAsyLi5pby5kZWVwaGF2ZW4ucHJvdG8uYmFja3BsYW5lLmdy"
    "cGMuQ29uZmlnVmFsdWVSBXZhbHVlOgI4ASI6CgtDb25maWdWYWx1ZRIjCgxzdHJpbmdfdmFsdWUYAyABKAlIAFIL"
    "c3RyaW5nVmFsdWVCBgoEa2luZGIGcHJvdG8z"
)
