"""Makes data/minilm-expected.safetensors: what PyTorch gives for data/minilm-sentences.txt on the weights of all-MiniLM-L6-v2.

    python tests/minilm_expected.py MODEL-FOLDER        needs torch, transformers and safetensors

tokens: (sentences, longest) int64, padded with 0, by transformers' BertTokenizerFast. embeddings: (sentences, 384): BertModel in float64, mean over tokens,
normalised, rounded once to float32. Prints how far PyTorch's own float32 result is from that.
"""
import sys
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, BertTokenizerFast

folder = sys.argv[1]
sentences = open("data/minilm-sentences.txt", encoding="utf-8").read().splitlines()
tokenizer = BertTokenizerFast.from_pretrained(folder)
batch = tokenizer(sentences, padding=True, return_tensors="pt")
model = BertModel(BertConfig.from_pretrained(folder))
weights = load_file(folder + "/model.safetensors")
weights.pop("embeddings.position_ids")
missing, unexpected = model.load_state_dict(weights, strict=False)
assert not unexpected and all("position_ids" in m or "token_type_ids" in m for m in missing), (missing, unexpected)
model.eval()


def embed(model, dtype):
    with torch.no_grad():
        h = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1).to(dtype)
    return torch.nn.functional.normalize((h * mask).sum(1) / mask.sum(1).clamp(min=1e-9), dim=1)


single = embed(model, torch.float32)
double = embed(model.double(), torch.float64)
print("float32 is off by at most", (single.double() - double).abs().max().item())
save_file({"tokens": batch["input_ids"].contiguous(), "embeddings": double.float().contiguous()}, "data/minilm-expected.safetensors")
