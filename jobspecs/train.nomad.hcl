# SPDX-License-Identifier: MPL-2.0
#
# A training run over several GPU nodes: one gang of `nodes` allocations, each
# with `gpus` GPUs. All start together or none; when a process fails, all stop
# and start again from the checkpoint, in seconds and on the same nodes.
#
#   nomad job run jobspecs/train.nomad.hcl
#   nomad job run -var nodes=8 -var checkpoint_dir=/shared/ckpt jobspecs/train.nomad.hcl

variable "nodes" {
  type        = number
  default     = 4
  description = "How many nodes the gang spans."
}

variable "min_nodes" {
  type        = number
  default     = 0
  description = "The least size the gang goes on with, where nodes are missing; 0: all of them."
}

variable "gpus" {
  type        = number
  default     = 8
  description = "GPUs on each node."
}

variable "node_pool" {
  type        = string
  default     = "gpu"
  description = "The Nomad node pool the GPU nodes are in."
}

variable "spot" {
  type        = string
  default     = "prefer"
  description = "prefer, never or only: may this run on spot nodes? Those have gpu.lifecycle = spot in their meta."
}

variable "command" {
  type        = string
  default     = "/usr/bin/python3"
  description = "The program to run on each node; it is not given to a shell."
}

variable "script" {
  type        = string
  default     = "examples/pytorch-ddp/train.py"
  description = "A Python file, relative to where `nomad job run` is called, handed to the command; empty: none."
}

variable "args" {
  type        = list(string)
  default     = ["--steps", "60", "--step-seconds", "0.2"]
  description = "Arguments after the script."
}

variable "processes_per_node" {
  type        = number
  default     = 1
  description = "Processes that take part on each node; the example runs one. 0: one for each GPU, as torchrun starts them."
}

variable "checkpoint_dir" {
  type        = string
  default     = ""
  description = "A directory that all nodes share; empty: no checkpoints."
}

variable "cpu" {
  type        = number
  default     = 500
  description = "MHz for each node's task."
}

variable "memory" {
  type        = number
  default     = 1024
  description = "MiB for each node's task."
}

job "train" {
  type        = "batch"
  datacenters = ["*"]
  node_pool   = var.node_pool

  meta = {
    "gpu.spot" = var.spot
  }

  group "gang" {
    count = var.nodes

    # The driver restarts the gang as a whole, in place. Nomad steps in only
    # where a node is lost: it places a new allocation, and the gang takes it in.
    restart {
      attempts = 0
      mode     = "fail"
    }

    # Also for a gang that gives its nodes back to one before it in line.
    reschedule {
      attempts       = 6
      interval       = "1h"
      delay          = "5s"
      delay_function = "constant"
      unlimited      = false
    }

    # One member a node.
    constraint {
      distinct_hosts = true
    }

    # The job's meta says what may be bought for it; this, where it may run.
    dynamic "constraint" {
      for_each = var.spot == "never" ? ["!="] : var.spot == "only" ? ["="] : []
      content {
        attribute = "${meta.gpu.lifecycle}"
        operator  = constraint.value
        value     = "spot"
      }
    }

    # Two ports for the rendezvous, used in turn, and one for NCCL's RAS.
    network {
      port "gang_a" {}
      port "gang_b" {}
      port "gang_ras" {}
    }

    task "train" {
      driver       = "nccl"
      kill_timeout = "30s"

      config {
        command        = var.command
        args           = concat(var.script == "" ? [] : ["${NOMAD_TASK_DIR}/train.py"], var.args)
        nproc_per_node = var.processes_per_node

        gang {
          nodes     = var.nodes
          min_nodes = var.min_nodes
          restarts  = 3
        }

        checkpoint {
          dir    = var.checkpoint_dir
          signal = "SIGTERM"
          grace  = "20s"
        }
      }

      # The script travels with the job. The delimiters are ones that no
      # Python file has, so that nothing in it is taken for a template.
      dynamic "template" {
        for_each = var.script == "" ? [] : [var.script]
        content {
          destination     = "local/train.py"
          data            = file(template.value)
          left_delimiter  = "<<<%"
          right_delimiter = "%>>>"
          change_mode     = "noop"
        }
      }

      resources {
        cpu    = var.cpu
        memory = var.memory

        device "nvidia/gpu" {
          count = var.gpus
        }
      }
    }
  }
}
