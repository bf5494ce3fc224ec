# SPDX-License-Identifier: MPL-2.0
#
# Three zones of 16 spot nodes with one GPU, and what is on demand beside them.
# Their kind is one whose nodes the target gpu-pool drains: work moves only there.
# The programs are never run.

pool "spot-east-2b" {
  kind      = "command"
  lifecycle = "spot"
  price     = 0.918
  max       = 16
  idle_time = "5m"

  command {
    dir     = "/var/lib/nomad-autoscaler-gpu/spot-east-2b"
    create  = ["/usr/local/bin/machines"]
    list    = ["/usr/local/bin/machines"]
    destroy = ["/usr/local/bin/machines"]
  }

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
  kind      = "command"
  lifecycle = "spot"
  price     = 0.918
  max       = 16
  idle_time = "5m"

  command {
    dir     = "/var/lib/nomad-autoscaler-gpu/spot-west-2a"
    create  = ["/usr/local/bin/machines"]
    list    = ["/usr/local/bin/machines"]
    destroy = ["/usr/local/bin/machines"]
  }

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
  kind      = "command"
  lifecycle = "spot"
  price     = 0.918
  max       = 16
  idle_time = "5m"

  command {
    dir     = "/var/lib/nomad-autoscaler-gpu/spot-west-2c"
    create  = ["/usr/local/bin/machines"]
    list    = ["/usr/local/bin/machines"]
    destroy = ["/usr/local/bin/machines"]
  }

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
  kind      = "command"
  lifecycle = "on-demand"
  price     = 3.06
  max       = 96
  idle_time = "5m"

  command {
    dir     = "/var/lib/nomad-autoscaler-gpu/on-demand"
    create  = ["/usr/local/bin/machines"]
    list    = ["/usr/local/bin/machines"]
    destroy = ["/usr/local/bin/machines"]
  }

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
  kind      = "command"
  lifecycle = "on-demand"
  price     = 24.48
  max       = 8
  idle_time = "5m"

  command {
    dir     = "/var/lib/nomad-autoscaler-gpu/on-demand-8"
    create  = ["/usr/local/bin/machines"]
    list    = ["/usr/local/bin/machines"]
    destroy = ["/usr/local/bin/machines"]
  }

  select {
    node_class = "on-demand-8"
  }

  shape {
    gpus   = 8
    cpu    = 193600
    memory = 1048576
  }
}
