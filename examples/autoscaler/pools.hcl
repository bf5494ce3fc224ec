# SPDX-License-Identifier: MPL-2.0
#
# The pools that nomad-autoscaler-gpu plans for.

# Spot nodes in a cloud group: the autoscaler's built-in aws-asg makes them.
pool "h100-spot" {
  kind      = "target"
  lifecycle = "spot"
  price     = 40
  min       = 0
  max       = 16
  idle_time = "10m"

  select {
    node_pool  = "gpu"
    node_class = "h100-spot"
  }

  shape {
    gpus  = 8
    model = "NVIDIA H100 80GB HBM3"
  }
}

# Two nodes that are always there.
pool "h100-on-demand" {
  kind      = "target"
  lifecycle = "on-demand"
  price     = 98
  min       = 2
  max       = 4

  select {
    node_pool  = "gpu"
    node_class = "h100-on-demand"
  }

  shape {
    gpus  = 8
    model = "NVIDIA H100 80GB HBM3"
  }
}

# Azure and Google: their built-in targets make the nodes.
pool "azure-h100" {
  kind      = "target"
  lifecycle = "spot"
  price     = 42
  max       = 8

  select {
    node_class = "azure-h100"
  }

  shape {
    gpus  = 8
    model = "NVIDIA H100 80GB HBM3"
  }
}

pool "gce-h100" {
  kind      = "target"
  lifecycle = "spot"
  price     = 41
  max       = 8

  select {
    node_class = "gce-h100"
  }

  shape {
    gpus  = 8
    model = "NVIDIA H100 80GB HBM3"
  }
}

# An EC2 Fleet, one of its instances on-demand.
pool "a100-fleet" {
  kind      = "aws-ec2-fleet"
  lifecycle = "spot"
  price     = 14
  max       = 8

  select {
    node_class = "a100-fleet"
  }

  shape {
    gpus  = 8
    model = "NVIDIA A100-SXM4-80GB"
  }

  aws {
    dir            = "/var/lib/nomad-autoscaler-gpu"
    region         = "us-east-1"
    fleet          = "fleet-12345678-90ab-cdef-1234-567890abcdef"
    on_demand_base = 1
  }
}

# Machines that a program of yours switches on and off.
pool "rack" {
  kind      = "command"
  lifecycle = "on-demand"
  price     = 5
  max       = 4

  select {
    node_class = "rack"
  }

  shape {
    gpus  = 8
    model = "NVIDIA L40S"
  }

  # What it costs to own them, for the command cost.
  power {
    idle  = 0.9 # kW of a node
    busy  = 3.4
    price = 0.24 # of a kWh
    pue   = 1.3
  }

  fixed {
    month = 1900 # of a node
    nodes = 4
  }

  command {
    dir     = "/var/lib/nomad-autoscaler-gpu"
    create  = ["/usr/local/bin/rack", "on"]
    list    = ["/usr/local/bin/rack", "list"]
    destroy = ["/usr/local/bin/rack", "off"]
    timeout = "5m"
  }
}

# A Nomad client on this machine, started while it is needed.
pool "workstation" {
  kind      = "local"
  lifecycle = "on-demand"
  price     = 1
  max       = 1

  select {
    node_class = "workstation"
  }

  shape {
    gpus  = 2
    model = "NVIDIA RTX A6000"
  }

  local {
    dir = "/var/lib/nomad-autoscaler-gpu"

    slot "workstation" {
      command  = ["nomad", "agent", "-config", "/etc/nomad.d/gpu-client.hcl"]
      data_dir = "/opt/nomad/data"
    }
  }
}
