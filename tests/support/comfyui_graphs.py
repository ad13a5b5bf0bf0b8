"""ComfyUI graphs in the API format, made of stock nodes in the usual shapes, and a part of their `object_info`."""

import copy
from typing import Any

Graph = dict[str, Any]


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs, "_meta": {"title": class_type}}


def text_to_image() -> Graph:
    return copy.deepcopy(_TEXT_TO_IMAGE)


def image_to_image() -> Graph:
    graph = text_to_image()
    del graph["5"]
    graph["10"] = node("LoadImage", image="example.png")
    graph["11"] = node("VAEEncode", pixels=["10", 0], vae=["4", 2])
    graph["3"]["inputs"] |= {"latent_image": ["11", 0], "denoise": 0.87}
    return graph


def guided() -> Graph:
    """Return the shape of newer models: separate noise, guider, sampler and sigmas, and the prompt in its own node."""
    return {
        "1": node("UNETLoader", unet_name="flux.safetensors", weight_dtype="default"),
        "2": node("DualCLIPLoader", clip_name1="a", clip_name2="b", type="flux"),
        "3": node("PrimitiveStringMultiline", value="a lighthouse"),
        "4": node("CLIPTextEncode", text=["3", 0], clip=["2", 0]),
        "5": node("FluxGuidance", conditioning=["4", 0], guidance=3.5),
        "6": node("BasicGuider", model=["1", 0], conditioning=["5", 0]),
        "7": node("RandomNoise", noise_seed=5),
        "8": node("KSamplerSelect", sampler_name="euler"),
        "9": node("BasicScheduler", model=["1", 0], scheduler="simple", steps=20, denoise=1),
        "10": node("EmptySD3LatentImage", width=1024, height=768, batch_size=1),
        "11": node(
            "SamplerCustomAdvanced", noise=["7", 0], guider=["6", 0], sampler=["8", 0], sigmas=["9", 0],
            latent_image=["10", 0],
        ),
        "12": node("VAELoader", vae_name="ae"),
        "13": node("VAEDecode", samples=["11", 0], vae=["12", 0]),
        "14": node("SaveImage", images=["13", 0], filename_prefix="flux"),
    }  # fmt: skip


def plain() -> Graph:
    """Return a graph that runs on a ComfyUI without any model."""
    return {
        "1": node("EmptyImage", width=64, height=48, batch_size=1, color=255),
        "2": node("ImageScale", image=["1", 0], upscale_method="lanczos", width=256, height=192, crop="disabled"),
        "9": node("SaveImage", images=["2", 0], filename_prefix="callsheet/basic"),
    }


def as_the_editor_saves() -> Graph:
    return {"last_node_id": 9, "nodes": [{"id": 9, "type": "SaveImage"}], "links": [[1, 3, 0, 9, 0, "IMAGE"]]}


_TEXT_TO_IMAGE: Graph = {
    "3": node(
        "KSampler", seed=156680208700286, steps=20, cfg=8, sampler_name="euler", scheduler="normal", denoise=1,
        model=["4", 0], positive=["6", 0], negative=["7", 0], latent_image=["5", 0],
    ),
    "4": node("CheckpointLoaderSimple", ckpt_name="model.safetensors"),
    "5": node("EmptyLatentImage", width=512, height=768, batch_size=1),
    "6": node("CLIPTextEncode", text='a "bottle"\nof \\ stars ✨', clip=["4", 1]),
    "7": node("CLIPTextEncode", text="watermark", clip=["4", 1]),
    "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
    "9": node("SaveImage", filename_prefix="ComfyUI", images=["8", 0]),
}  # fmt: skip

_SIZE = {"default": 512, "min": 16, "max": 16384, "step": 8}
INFO: dict[str, Any] = {
    "KSampler": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "seed": ["INT", {"default": 0, "min": 0, "max": 18446744073709551615}],
                "steps": ["INT", {"default": 20, "min": 1, "max": 10000}],
                "cfg": ["FLOAT", {"default": 8.0, "min": 0.0, "max": 100.0}],
                "sampler_name": [["euler", "ddim"]],
                "scheduler": ["COMBO", {"options": ["normal", "karras"]}],
                "positive": ["CONDITIONING"],
                "negative": ["CONDITIONING"],
                "latent_image": ["LATENT"],
                "denoise": ["FLOAT", {"default": 1.0, "min": 0.0, "max": 1.0}],
            }
        },
        "output_node": False,
    },
    "CheckpointLoaderSimple": {"input": {"required": {"ckpt_name": [["model.safetensors"]]}}},
    "EmptyLatentImage": {
        "input": {"required": {"width": ["INT", _SIZE], "height": ["INT", _SIZE], "batch_size": ["INT", {}]}}
    },
    "CLIPTextEncode": {"input": {"required": {"text": ["STRING", {"multiline": True}], "clip": ["CLIP"]}}},
    "VAEDecode": {"input": {"required": {"samples": ["LATENT"], "vae": ["VAE"]}}},
    "VAEEncode": {"input": {"required": {"pixels": ["IMAGE"], "vae": ["VAE"]}}},
    "LoadImage": {"input": {"required": {"image": [[], {"image_upload": True}]}}},
    "SaveImage": {
        "input": {"required": {"images": ["IMAGE"], "filename_prefix": ["STRING", {}]}, "hidden": {"prompt": "PROMPT"}},
        "output_node": True,
    },
}
