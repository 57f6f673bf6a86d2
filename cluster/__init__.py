"""Several servers as one: members of a cluster, and HAProxy in front of them."""
