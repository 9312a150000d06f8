# For machines with NVIDIA GPUs and their container toolkit:
#
#   docker build -t unmdpo .
#   docker run --gpus all --ipc=host -v "$PWD":/workspace unmdpo run mine.yaml
FROM python:3.12-slim
# Triton compiles with a C compiler when layers are first used.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir '.[endpoint,lora,qlora,tensorboard,wandb]'
WORKDIR /workspace
ENV UNMDPO_STORE=/workspace/unmdpo-store HF_HOME=/workspace/.cache/huggingface
ENTRYPOINT ["unmdpo"]
CMD ["--help"]
