"""LongBench's 21 subsets: prompts, token limits, metrics and classes, as the benchmark defines them.

The prompts are those that published results were obtained with, spelling included ("asconcisely").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from .metrics import classification, code_similarity, count, qa_f1, qa_f1_zh, retrieval, rouge_l, rouge_l_zh

TREC_CLASSES = (
    "Food", "Date", "Order, rank", "Speed", "Disease and medicine", "Word with a special property", "Abbreviation",
    "Language", "Letter like a-z", "Other entity", "Animal", "Expression abbreviated", "Price",
    "Techniques and method", "Musical instrument", "Mountain", "Currency name", "Event", "Product", "State",
    "Individual", "Organ of body", "Reason", "Manner of an action", "City", "Religion",
    "Invention, book and other creative piece", "Distance, linear measure", "Temperature", "Postcode or other code",
    "Size, area and volume", "Sport", "Country", "Other location", "Lasting time of somethin", "Equivalent term",
    "Description of something", "Weight", "Vehicle", "Color", "Other number", "Definition of something",
    "Element and substance", "Description of a person", "Symbols and sign", "Number of something", "Plant",
    "Percent, fraction", "Group or organization of person", "Title of a person",
)  # fmt: skip
LSHT_CLASSES = (
    "农业、农村", "军事", "文学、艺术", "体育", "传媒业", "电子信息产业", "文化、休闲娱乐", "社会、劳动", "经济",
    "服务业、旅游业", "环境、气象", "能源、水务、水利", "财政、金融", "教育", "科学技术", "对外关系、国际关系",
    "矿业、工业", "政治", "交通运输、邮政、物流", "灾难、事故", "基本建设、建筑业、房地产", "医药、卫生", "法律、司法",
    "商业、外贸、海关",
)  # fmt: skip

Metric = Callable[[str, str], float]
"""Of a prediction and one of the answers."""


@dataclass(frozen=True)
class Subset:
    """One of the 21.

    Attributes:
        prompt: With the places `{context}`, always, and `{input}`, where a row has a question.
        max_new_tokens: Of an answer.
        metric: Scores a prediction against one answer.
        chat: Whether the prompt goes into the model's chat template.
        first_line: Only the prediction's first line is scored.
        stop: What ends an answer, beside the model's own end.
        classes: What a prediction is one of, in the benchmark's order.
    """

    prompt: str
    max_new_tokens: int
    metric: Metric
    chat: bool = True
    first_line: bool = False
    stop: tuple[str, ...] = ()
    classes: Sequence[str] = ()

    @property
    def before(self) -> str:
        """The prompt up to the context."""
        return self.prompt.partition("{context}")[0]

    @property
    def between(self) -> str:
        """The prompt from the context to the input, or to its end where it has none."""
        return self.prompt.partition("{context}")[2].partition("{input}")[0]

    @property
    def after(self) -> str:
        """The prompt from the input on; empty where it has none."""
        return self.prompt.partition("{input}")[2]

    @property
    def asks(self) -> bool:
        """Whether the prompt has a place for a row's input."""
        return "{input}" in self.prompt

    def tail(self, given: str) -> str:
        """Return what follows the context, a row's input filled in."""
        return self.between + given + self.after if self.asks else self.between


_NARRATIVE = (
    "Answer the question asconcisely as you can, using a single phrase if possible. Do not provide any explanation."
)
_NARRATIVE_AGAIN = (
    "Now, answer the question based on the story asconcisely as you can, using a single phrase if possible. "
    "Do not provide any explanation."
)
_QASPER_RULES = (
    "as concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered based "
    'on the information in the article, write "unanswerable". If the question is a yes/no question, answer "yes", '
    '"no", or "unanswerable". Do not provide any explanation.'
)
_PASSAGES_RULE = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words."
)
_PASSAGES = (
    f"{_PASSAGES_RULE}\n\nThe following are given passages.\n{{context}}\n\n{_PASSAGES_RULE}\n\n"
    "Question: {input}\nAnswer:"
)

SUBSETS = {
    "narrativeqa": Subset(
        "You are given a story, which can be either a novel or a movie script, and a question. "
        f"{_NARRATIVE}\n\nStory: {{context}}\n\n{_NARRATIVE_AGAIN}\n\nQuestion: {{input}}\n\nAnswer:",
        128,
        qa_f1,
    ),
    "qasper": Subset(
        f"You are given a scientific article and a question. Answer the question {_QASPER_RULES}\n\n"
        f"Article: {{context}}\n\n Answer the question based on the above article {_QASPER_RULES}\n\n"
        "Question: {input}\n\nAnswer:",
        128,
        qa_f1,
    ),
    "multifieldqa_en": Subset(
        "Read the following text and answer briefly.\n\n{context}\n\n"
        "Now, answer the following question based on the above text, only give me the answer and do not output any "
        "other words.\n\nQuestion: {input}\nAnswer:",
        64,
        qa_f1,
    ),
    "multifieldqa_zh": Subset(
        "阅读以下文字并用中文简短回答：\n\n{context}\n\n"
        "现在请基于上面的文章回答下面的问题，只告诉我答案，不要输出任何其他字词。\n\n问题：{input}\n回答：",
        64,
        qa_f1_zh,
    ),
    "hotpotqa": Subset(_PASSAGES, 32, qa_f1),
    "2wikimqa": Subset(_PASSAGES, 32, qa_f1),
    "musique": Subset(_PASSAGES, 32, qa_f1),
    "dureader": Subset(
        "请基于给定的文章回答下述问题。\n\n文章：{context}\n\n请基于上述文章回答下面的问题。\n\n问题：{input}\n回答：",
        128,
        rouge_l_zh,
    ),
    "gov_report": Subset(
        "You are given a report by a government agency. Write a one-page summary of the report.\n\n"
        "Report:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:",
        512,
        rouge_l,
    ),
    "qmsum": Subset(
        "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one "
        "or more sentences.\n\nTranscript:\n{context}\n\nNow, answer the query based on the above meeting transcript "
        "in one or more sentences.\n\nQuery: {input}\nAnswer:",
        512,
        rouge_l,
    ),
    "multi_news": Subset(
        "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n{context}\n\n"
        "Now, write a one-page summary of all the news.\n\nSummary:",
        512,
        rouge_l,
    ),
    "vcsum": Subset(
        "下面有一段会议记录，请你阅读后，写一段总结，总结会议的内容。\n会议记录：\n{context}\n\n会议总结：",
        512,
        rouge_l_zh,
    ),
    "trec": Subset(
        "Please determine the type of the question below. Here are some examples of questions.\n\n{context}\n{input}",
        64,
        partial(classification, classes=TREC_CLASSES),
        chat=False,
        first_line=True,
        classes=TREC_CLASSES,
    ),
    "triviaqa": Subset(
        "Answer the question based on the given passage. Only give me the answer and do not output any other words. "
        "The following are some examples.\n\n{context}\n\n{input}",
        32,
        qa_f1,
        chat=False,
        first_line=True,
    ),
    "samsum": Subset(
        "Summarize the dialogue into a few short sentences. The following are some examples.\n\n{context}\n\n{input}",
        128,
        rouge_l,
        chat=False,
        first_line=True,
        stop=("\n",),
    ),
    "lsht": Subset(
        "请判断给定新闻的类别，下面是一些例子。\n\n{context}\n{input}",
        64,
        partial(classification, classes=LSHT_CLASSES),
        chat=False,
        first_line=True,
        classes=LSHT_CLASSES,
    ),
    "passage_count": Subset(
        "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully read "
        "these paragraphs and determine how many unique paragraphs there are after removing duplicates. In other "
        "words, how many non-repeating paragraphs are there in total?\n\n{context}\n\nPlease enter the final count of "
        "unique paragraphs after removing duplicates. The output format should only contain the number, such as 1, 2, "
        "3, and so on.\n\nThe final answer is: ",
        32,
        count,
    ),
    "passage_retrieval_en": Subset(
        "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the abstract "
        "is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}\n\nPlease enter the number of the paragraph "
        'that the abstract is from. The answer format must be like "Paragraph 1", "Paragraph 2", etc.\n\n'
        "The answer is: ",
        32,
        partial(retrieval, word="Paragraph "),
    ),
    "passage_retrieval_zh": Subset(
        "以下是若干段落文字，以及其中一个段落的摘要。请确定给定的摘要出自哪一段。\n\n{context}\n\n下面是一个摘要\n\n{input}\n\n"
        '请输入摘要所属段落的编号。答案格式必须是"段落1"，"段落2"等格式\n\n答案是：',
        32,
        partial(retrieval, word="段落"),
    ),
    "lcc": Subset(
        "Please complete the code given below. \n{context}Next line of code:\n",
        64,
        code_similarity,
        chat=False,
    ),
    "repobench-p": Subset(
        "Please complete the code given below. \n{context}{input}Next line of code:\n",
        64,
        code_similarity,
        chat=False,
    ),
}
