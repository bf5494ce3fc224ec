# SPDX-License-Identifier: MPL-2.0
#
# Three zones of 16 spot nodes with one GPU, and what is on demand beside them.

pool "spot-east-2b" {
  kind      = "target"
  lifecycle = "spot"
  price     = 0.918
  max       = 16
  idle_time = "5m"

  select {
    node_class = "spot-east-2b"
  }

  shape {
    gpus   = 1
    cpu    = 24200
    memory = 131072
  }
}

pool "spot-west-2a" {
  kind      = "target"
  lifecycle = "spot"
  price     = 0.918
  max       = 16
  idle_time = "5m"

  select {
    node_class = "spot-west-2a"
  }

  shape {
    gpus   = 1
    cpu    = 24200
    memory = 131072
  }
}

pool "spot-west-2c" {
  kind      = "target"
  lifecycle = "spot"
  price     = 0.918
  max       = 16
  idle_time = "5m"

  select {
    node_class = "spot-west-2c"
  }

  shape {
    gpus   = 1
    cpu    = 24200
    memory = 131072
  }
}

pool "on-demand" {
  kind      = "target"
  lifecycle = "on-demand"
  price     = 3.06
  max       = 96
  idle_time = "5m"

  select {
    node_class = "on-demand"
  }

  shape {
    gpus   = 1
    cpu    = 24200
    memory = 131072
  }
}

pool "on-demand-8" {
  kind      = "target"
  lifecycle = "on-demand"
  price     = 24.48
  max       = 8
  idle_time = "5m"

  select {
    node_class = "on-demand-8"
  }

  shape {
    gpus   = 8
    cpu    = 193600
    memory = 1048576
  }
}
